"""Pages of HTML, each in one file: text, tables and plots."""
from .page import Section, Table, write_page
from .sample_section import sample_section

__all__ = ['Section', 'Table', 'sample_section', 'write_page']
