# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for the documentation site; `make docs` builds it.

Sources lie where they are read on GitHub: the root of the project is the source
directory, so that links between pages need no rewriting.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / 'site')]

import jfold  # noqa: E402

project = 'jfold'
author = copyright = 'The jfold authors'
version = release = jfold.__version__

extensions = [
    'myst_nb',
    'sphinx.ext.autodoc',
    'sphinx.ext.linkcode',
    'sphinx_copybutton',
    'links',  # docs/site/links.py
    'sources',
    'docstrings',
]
root_doc = 'docs/index'
include_patterns = [
    '*.md',
    'docs/**.md',
    'docs/notebooks/*.ipynb',
    'examples/README.md',
    'benchmarks/README.md',
    'tests/README.md',
    'jfold/*/README.md',
]
exclude_patterns = ['.*', 'build', 'dist', '**/__pycache__']  # not walked either
nitpicky = True
default_role = 'code'
smartquotes_action = 'D'  # dashes alone: quotes may be those of strings
highlight_language = 'text'
nb_execution_mode = 'off'  # `make notebooks` keeps what they print and draw
myst_heading_anchors = 4
myst_enable_extensions = ['colon_fence']

autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True
autodoc_typehints = 'signature'
autodoc_typehints_format = 'short'
autodoc_inherit_docstrings = False
add_module_names = False
maximum_signature_line_length = 60
copybutton_prompt_text = r'>>> |\.\.\. '
copybutton_prompt_is_regexp = True

html_theme = 'sphinx_book_theme'
html_title = 'jfold'
html_logo = '_static/logo.svg'
html_favicon = '_static/favicon.svg'
html_static_path = ['_static']
html_css_files = ['site.css']
html_copy_source = False
html_show_copyright = False  # the licence says it
html_show_sphinx = False
html_context = {'default_mode': 'auto'}
html_theme_options = {
    'navbar_persistent': [],
    'show_navbar_depth': 1,
    'show_toc_level': 2,
    'home_page_in_toc': False,
    'use_download_button': False,
    'use_fullscreen_button': False,
    'pygments_light_style': 'a11y-high-contrast-light',
    'pygments_dark_style': 'a11y-high-contrast-dark',
}
