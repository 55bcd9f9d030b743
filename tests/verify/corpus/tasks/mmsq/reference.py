def mmsq(a, b):
    return a @ b
