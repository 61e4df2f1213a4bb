"""One leader among candidates: ``leadership`` has the rules of a term, and the current leader."""
