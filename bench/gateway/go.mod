module github.com/kvferry/kvferry/bench/gateway

go 1.26
