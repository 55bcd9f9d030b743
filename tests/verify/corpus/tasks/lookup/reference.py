def lookup(table, idx):
    return table[idx]
