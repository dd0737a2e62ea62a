"""Pages of HTML, each in one file: sections of text, tables, plots and images."""
from .page import Section, Table, build_sections, write_page
from .sample_section import sample_section

__all__ = ['Section', 'Table', 'build_sections', 'sample_section', 'write_page']
