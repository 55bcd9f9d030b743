def quotient(x, y):
    return x / y
