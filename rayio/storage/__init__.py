"""Where bytes are: real storage and models of it, behind one protocol that counts every request."""
