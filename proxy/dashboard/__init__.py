"""The dashboard at `/_condenser/`: what was condensed, why, and how to take it back. Jinja2 renders the pages here.

A page is made in three steps: `routes` reads the same data as the admin API, `pages` turns a session into what is
drawn, and a template writes the HTML. The script of a page only fetches it again every few seconds and replaces what
has changed.

The text of users and models is never more than text: templates escape it, no Markdown is rendered, no links are made of
it, and the content security policy allows only the one script file.
"""
