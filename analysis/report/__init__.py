"""Tables, figures and text: everything that is printed or drawn."""
