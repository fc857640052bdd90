// Package model holds the bundled demo model, gopherdoc: a llama of 4.7 million parameters that continues Go doc comments. It exists so that a
// real prompt can be prefilled in one process and decoded in another on any machine; it is no useful language model.
package model

import (
	"bytes"
	_ "embed"

	"github.com/kvferry/kvferry/llm"
)

//go:embed gopherdoc-q8_0.gguf
var weights []byte

// License is the notice of the corpus that the weights were trained on: the doc comments of the Go standard library.
//
//go:embed LICENSE.corpus
var License string

// Name is the name under which the bundled model is served.
const Name = "gopherdoc"

// Bundled reads the model.
func Bundled() (*llm.Model, error) {
	return llm.Open(bytes.NewReader(weights), int64(len(weights)))
}
