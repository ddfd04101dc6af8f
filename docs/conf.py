from importlib.metadata import version as installed_version

project = "kombu-redisdelay"
author = "kombu-redisdelay contributors"
project_copyright = f"2026, {author}"
version = release = installed_version("kombu-redisdelay")

# Pictures drawn as text.
extensions = ["sphinxcontrib.svgbob"]

html_theme = "furo"
html_title = f"{project} {release}"
