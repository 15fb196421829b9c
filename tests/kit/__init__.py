"""Parts of Epochal's own tests that several folders of tests share; README.md lists them. Not part of the wheel."""
