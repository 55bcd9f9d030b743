def mmlock(a, b):
    return a @ b
