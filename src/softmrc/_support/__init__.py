"""What any package may use: files, units, processes, threads, pages."""
