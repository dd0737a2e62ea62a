"""Self-contained HTML pages: sections of text, tables, plots and images."""
from . import plots
from .page import Section, Table, build_sections, render_sections, write_page
from .scenes import build_sample_section

__all__ = [
    'Section', 'Table', 'build_sample_section', 'build_sections', 'plots', 'render_sections',
    'write_page'
]
