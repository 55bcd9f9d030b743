def scale_huge(x):
    return x * 2 + 1
