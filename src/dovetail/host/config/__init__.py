"""Configuration files of known hosts: read, watch and edit."""
