"""Sign-in at an OpenID provider: its tokens become users with the grants of their groups."""
