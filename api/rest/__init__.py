"""The REST interface, /v1: what trainers and people ask of the service over HTTP."""
