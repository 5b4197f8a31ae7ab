"""What Headrace is deployed with: its image, its chart, and the tools that check them."""
