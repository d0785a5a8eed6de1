"""`python -m models.train CONFIG.json`."""

from models.train.main import main

if __name__ == "__main__":
    main()
