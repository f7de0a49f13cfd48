"""The dashboard at `/_condenser/`: what was condensed, why, and how to take it back. Jinja2 renders the pages here.

A page is made in three steps: `routes` reads what the admin API reads, `timeline` turns a session into what is drawn,
and a template writes it. The script of a page only fetches it again every few seconds and exchanges what has changed.

Text of users and models is only ever text: templates escape it, no Markdown is rendered and no link is made of it, and
the policy of the pages (CSP) lets no script run but the one file.
"""
