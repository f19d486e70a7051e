"""Test that `make check` counts the size and the complexity of sources, and describes each exceeded limit."""

import ast
from pathlib import Path

from architecture.check_budgets import find_excesses, read_module

SOURCE = '''"""A module.

Two more lines.
"""

# a comment
class Shop:
    """A class."""

    async def sell(self, items, is_open):
        """Sell."""
        assert items
        for item in items:
            if item and is_open or item == "bread":
                yield [size for size in item if size]
        else:
            return
        while is_open:
            try:
                return item if item else None
            except (KeyError, ValueError):
                continue
            except OSError:
                pass
            else:
                is_open = False

        def choose(item):
            match item:
                case "bread":
                    return 1
                case _:
                    return (lambda size: size or 2)(item)
'''
LIMITS = {
    "packages": {"all": [100, 1000, 1], "shop": [24, 1000, 1]},
    "modules_of_a_folder": {"any": 1, "shop": 0},
    "lines_of_a_class": {"any": 26},
    "complexity_of_a_function": {"any": 13, "Shop.sell.choose": 3},
}


def test_code_lines_and_complexity_are_counted() -> None:
    module = read_module(Path("shop/shop.py"), SOURCE)
    assert (module.size.code_lines, module.size.files) == (23, 1)
    assert module.size.nodes == len([*ast.walk(ast.parse(SOURCE))])
    assert module.classes == {"Shop": 27}
    # 1 + assert + for and its else + if, and, or + comprehension and its if + while + two handlers and else + a choice
    assert module.functions == {("Shop.sell", 10): 14, ("Shop.sell.choose", 28): 3}


def test_each_excess_is_described() -> None:
    module = read_module(Path("shop/shop.py"), SOURCE)
    assert find_excesses([module], LIMITS) == [
        "modules of shop: 1 is 1 more than the limit 0",
        "lines of shop/shop.py Shop: 27 is 1 more than the limit 26",
        "complexity of shop/shop.py:10 Shop.sell: 14 is 1 more than the limit 13",
    ]


def test_a_package_without_limits_is_an_excess() -> None:
    module = read_module(Path("new/shop.py"), "x = 1")
    assert "files of new: 1 is 1 more than the limit 0" in find_excesses([module], LIMITS)
