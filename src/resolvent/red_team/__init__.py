"""What insiders of a federation could learn about a site's rows, tried out at the site on its own table."""
