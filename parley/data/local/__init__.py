"""The user's own data: arrays, frames, torch data sets, and folders of tables, arrays or images."""
