"""Asks inference servers, and saves what they answer."""
