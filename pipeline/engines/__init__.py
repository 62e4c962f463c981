"""What inference engines are asked, and what they write."""
