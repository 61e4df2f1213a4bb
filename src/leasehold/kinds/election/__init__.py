"""One leader among candidates: ``leadership`` is what a term is, and who leads."""
