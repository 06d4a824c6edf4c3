def page(results: object) -> str:
    return "</html>"
