module chain

go 1.21
