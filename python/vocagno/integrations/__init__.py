"""Bridges to other libraries and formats. No package of the method imports one of them."""
