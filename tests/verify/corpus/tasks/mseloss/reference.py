def mseloss(x, y):
    return (x - y).square().mean()
