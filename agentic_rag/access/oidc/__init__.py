"""Sign-in at an OpenID provider: what it has signed becomes a user of ours with the grants of their groups."""
