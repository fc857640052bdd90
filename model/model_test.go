package model_test

import (
	"strings"
	"testing"

	"github.com/kvferry/kvferry/llm"
	"github.com/kvferry/kvferry/model"
)

func TestBundled(t *testing.T) {
	m, err := model.Bundled()
	if err != nil {
		t.Fatal(err)
	}
	got := m.Config()
	want := llm.Config{
		Name: "gopherdoc-4.7M", Fingerprint: "d08c1fab582d01666c4bcee91fe6247ccf69b9a468a48e0529d8f7ceec29b54a",
		Layers: 6, Dim: 256, Heads: 8, KVHeads: 4, HeadDim: 32, FFN: 640, Vocab: 2048, Context: 512, RopeBase: 10000, Eps: 1e-5,
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if !strings.Contains(model.License, "Copyright 2009 The Go Authors.") || !strings.Contains(model.License, "Redistribution and use in source and binary forms") {
		t.Errorf("the notice of the corpus is not whole: %q", model.License)
	}
}
