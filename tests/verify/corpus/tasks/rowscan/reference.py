def rowscan(x):
    return x - x.mean(-1, keepdim=True)
