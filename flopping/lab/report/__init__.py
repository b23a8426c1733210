"""From records to tables, figures and pages, beside what the paper reports."""
