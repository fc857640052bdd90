package vectors

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// unasserted are recorded tables that no test reads, each with its reason: by name, or by folder.
var unasserted = map[string]string{
	"staging_ring":       "the staging buffer is not spoken",
	"staging_layout":     "the staging buffer is not spoken",
	"staging_grid":       "the staging buffer is not spoken",
	"staging_watermark":  "the staging buffer is not spoken",
	"staging_decode":     "the staging buffer is not spoken",
	"deferred_bootstrap": "allocation policy prefill_complete is not offered",
	"sessions/mooncake":  "recorded sessions are not replayed; the real peers are driven instead (interop)",
	"sessions/nixl":      "the dialect is not spoken",
	"sessions/mori":      "the dialect is not spoken",
}

// TestTablesClaimed holds the folder that the tests read against the tests: a table that no test of the module names has no effect, and a
// table named that is not there is a test of nothing.
func TestTablesClaimed(t *testing.T) {
	claims := claimed(t, filepath.Join("..", ".."))
	seen := map[string]bool{}
	err := fs.WalkDir(folder(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path == "SOURCE.json" {
			return err
		}
		name, ok := strings.CutSuffix(path, ext)
		if !ok {
			t.Errorf("unknown file %s: want SOURCE.json or *%s", path, ext)
			return nil
		}
		by := lookUp(claims, name)
		why := lookUp(unasserted, name)
		switch {
		case by != "":
			t.Logf("%s: asserted by %s", name, by)
		case why != "" && os.Getenv(Env) != "":
			t.Logf("%s: not asserted: %s", name, why)
		default:
			t.Errorf("no Test…Vector… names table %s", name)
		}
		for p := name; p != "."; p = filepath.Dir(p) {
			seen[p] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, by := range claims {
		if !seen[name] {
			t.Errorf("%s asserts table %s, which is not there", by, name)
		}
		if why := unasserted[name]; why != "" {
			t.Errorf("table %s is asserted by %s and listed as unasserted (%s): take it off the list", name, by, why)
		}
	}
}

// TestTablesWhole compares the embedded tables with the number of lines that were recorded.
func TestTablesWhole(t *testing.T) {
	b, err := embedded.ReadFile(root + "/SOURCE.json")
	if err != nil {
		t.Fatal(err)
	}
	var src struct {
		Source, Recorded string
		Lines            map[string]int
	}
	if err := json.Unmarshal(b, &src); err != nil {
		t.Fatal(err)
	}
	if src.Source == "" || src.Recorded == "" || len(src.Lines) == 0 {
		t.Errorf("SOURCE.json names no source, date or tables: %+v", src)
	}
	names, err := fs.Glob(embedded, root+"/*"+ext)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := embedded.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		table := strings.TrimSuffix(filepath.Base(name), ext)
		if want, ok := src.Lines[table]; ok && strings.Count(string(b), "\n") != want {
			t.Errorf("%s has %d lines, %d were recorded", table, strings.Count(string(b), "\n"), want)
		}
	}
}

func TestDecodeIsExact(t *testing.T) {
	type inner struct {
		N int `json:"n"`
	}
	type row struct {
		A json.Number `json:"a"`
		B []inner     `json:"b"`
		C *inner      `json:"c"`
		D int         `json:"d,omitempty"`
		E any         `json:"e"`
		F [2]int      `json:"f,omitempty"`
	}
	for _, c := range []struct {
		line string
		ok   bool
	}{
		{`{"a":1,"b":[{"n":1}],"c":{"n":2},"d":3,"e":9223372036854775807}`, true},
		{`{"a":1,"b":[]}`, true},
		{`{"a":1,"b":[],"c":null}`, true},
		{`{"a":1,"b":[],"f":[1,2]}`, true},
		{`{"a":1,"b":[],"f":[1,2,3]}`, false},
		{`{"a":1,"b":[],"f":[1]}`, false},
		{`{"a":1,"b":null}`, true},
		{`{"a":1,"b":[null]}`, false},
		{`{"a":1,"b":[],"d":null}`, false},
		{`{"b":[]}`, false},                    // a missing
		{`{"a":1,"b":[{}]}`, false},            // b[0].n missing
		{`{"a":1,"b":[],"c":{}}`, false},       // c.n missing
		{`{"a":1,"b":[],"x":1}`, false},        // unknown
		{`{"a":1,"b":[{"n":1,"x":2}]}`, false}, // unknown, nested
		{`{"A":1,"b":[]}`, false},              // another field's name
		{`{"a":1,"b":[]} {}`, false},           // trailing
		{`{"a":1,"b":[{"n":1.5}]}`, false},     // no integer
		{`{"a":1,"b":[`, false},                // cut
		{``, false},                            // empty
	} {
		v, err := decode[row]([]byte(c.line))
		if (err == nil) != c.ok {
			t.Errorf("%s: %+v, error %v, want accepted %t", c.line, v, err, c.ok)
		}
	}
	v, err := decode[row]([]byte(`{"a":1,"b":[],"e":9223372036854775807}`))
	if err != nil || v.E != json.Number("9223372036854775807") {
		t.Errorf("a large integer became %v (%T), error %v", v.E, v.E, err)
	}
}

func lookUp(m map[string]string, name string) string {
	for p := name; p != "."; p = filepath.Dir(p) {
		if v := m[p]; v != "" {
			return v
		}
	}
	return ""
}

// claimed finds which test asserts which table or folder of tables: the string literals that a Test…Vector… function passes around and that
// look like a table name of SOURCE.json, of the embedded folder, or a path below sessions.
func claimed(t *testing.T, module string) map[string]string {
	t.Helper()
	known := tableNames(t)
	claims := map[string]string{}
	err := filepath.WalkDir(module, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || (len(d.Name()) > 2 && d.Name()[0] == '.')) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return nil // that package's own tests say what is wrong with it
		}
		if !imports(f, "github.com/kvferry/kvferry/internal/vectors") {
			return nil
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "Test") || !strings.Contains(fn.Name.Name, "Vector") {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				if s, err := strconv.Unquote(lit.Value); err == nil && (known[s] || strings.HasPrefix(s, "sessions/")) {
					rel, _ := filepath.Rel(module, filepath.Dir(path))
					claims[s] = strings.TrimSpace(claims[s] + " " + filepath.ToSlash(rel) + "." + fn.Name.Name)
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

func tableNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{"registry": true} // SOURCE.json does not count it
	b, err := embedded.ReadFile(root + "/SOURCE.json")
	if err != nil {
		t.Fatal(err)
	}
	var src struct{ Lines map[string]int }
	if err := json.Unmarshal(b, &src); err != nil {
		t.Fatal(err)
	}
	for name := range src.Lines {
		names[name] = true
	}
	return names
}

func imports(f *ast.File, path string) bool {
	for _, imp := range f.Imports {
		if p, err := strconv.Unquote(imp.Path.Value); err == nil && p == path {
			return true
		}
	}
	return false
}
