def total(price: int, discount: int) -> int:
    return price + discount
