module symbols

go 1.21
