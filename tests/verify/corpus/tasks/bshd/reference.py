def bshd(x):
    return x.transpose(1, 2).contiguous()
