def mmab(a, b):
    return a @ b
