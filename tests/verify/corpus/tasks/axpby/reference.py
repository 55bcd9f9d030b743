def axpby(x, y, alpha: float = 0.5, beta: float = 2.0):
    return alpha * x + beta * y
