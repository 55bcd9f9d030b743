def mmasync(a, b):
    return a @ b
