def mmswz(a, b):
    return a @ b
