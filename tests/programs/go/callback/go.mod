module callback

go 1.21
