package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestPurity: room, wire, kvlayout and node have no I/O, clock, randomness of their own, goroutine, channel or lock, and nothing in them
// follows the order of a map. Imports of ours are TestDirections' business.
func TestPurity(t *testing.T) {
	for _, rule := range pure {
		t.Run(rule.pkg, func(t *testing.T) {
			i := slices.IndexFunc(packages(t), func(p pkg) bool { return p.rel() == rule.pkg })
			if i < 0 {
				t.Logf("absent: %s", rule.pkg)
				return
			}
			p := packages(t)[i]
			fset := token.NewFileSet()
			for _, fault := range impurities(fset, p.files(t, fset, p.GoFiles), p.ImportPath, exports(t, "./"+rule.pkg), rule) {
				t.Error(fault)
			}
		})
	}
}

// impurities are the breaches of a rule in a package's files.
func impurities(fset *token.FileSet, files []*ast.File, path string, imp types.Importer, rule purity) []string {
	var out []string
	report := func(n ast.Node, text string) { out = append(out, fmt.Sprintf("%s: %s", fset.Position(n.Pos()), text)) }
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: imp, Error: func(err error) { out = append(out, err.Error()) }}
	conf.Check(path, fset, files, info) //lint:ignore errs Config.Error has them all
	for _, f := range files {
		for _, spec := range f.Imports {
			name := strings.Trim(spec.Path.Value, `"`)
			_, ok := pureImports[name]
			_, also := rule.also[name]
			if !ok && !also && !strings.HasPrefix(name, module+"/") {
				report(spec, "imports "+name+", which is not on the list for pure packages")
			}
		}
		sorted := sortedIterators(f, info)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				report(n, "starts a goroutine")
			case *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				report(n, "uses a channel")
			case *ast.UnaryExpr:
				if n.Op == token.ARROW {
					report(n, "receives from a channel")
				}
			case *ast.RangeStmt:
				if tv, ok := info.Types[n.X]; ok && !rule.mapRange {
					if _, isMap := tv.Type.Underlying().(*types.Map); isMap {
						report(n, "iterates over a map, whose order is random")
					}
				}
			case *ast.Ident:
				fn, ok := info.Uses[n].(*types.Func)
				if !ok || fn.Pkg() == nil || fn.Signature().Recv() != nil {
					return true
				}
				if slices.Contains(refused[fn.Pkg().Path()], fn.Name()) {
					report(n, "uses "+fn.FullName())
				}
				if fn.Pkg().Path() == "maps" && slices.Contains([]string{"All", "Keys", "Values"}, fn.Name()) && !rule.mapRange && !sorted[n] {
					report(n, "iterates over a map by "+fn.FullName()+" without slices.Sorted around it")
				}
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok {
					if b, ok := info.Uses[id].(*types.Builtin); ok && (b.Name() == "print" || b.Name() == "println") {
						report(n, "prints")
					}
				}
			}
			return true
		})
	}
	return out
}

// sortedIterators are the identifiers of maps' iterators whose result goes straight into slices.Sorted or a sibling of it.
func sortedIterators(f *ast.File, info *types.Info) map[*ast.Ident]bool {
	out := map[*ast.Ident]bool{}
	callee := func(c *ast.CallExpr) (*ast.Ident, *types.Func) {
		s, ok := c.Fun.(*ast.SelectorExpr)
		if !ok {
			return nil, nil
		}
		fn, _ := info.Uses[s.Sel].(*types.Func)
		return s.Sel, fn
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		if _, fn := callee(call); fn == nil || fn.Pkg() == nil || fn.Pkg().Path() != "slices" || !strings.HasPrefix(fn.Name(), "Sorted") {
			return true
		}
		if inner, ok := call.Args[0].(*ast.CallExpr); ok {
			if id, _ := callee(inner); id != nil {
				out[id] = true
			}
		}
		return true
	})
	return out
}

// exports is an importer for everything that the packages import, from the compiler's export data.
func exports(t *testing.T, patterns ...string) types.Importer {
	t.Helper()
	out, err := command("CGO_ENABLED=0", "go", append([]string{"list", "-e", "-deps", "-export", "-json=ImportPath,Export"}, patterns...)...)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	d := json.NewDecoder(bytes.NewReader(out))
	for {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		files[p.ImportPath] = p.Export
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("no export data for %s", path)
		}
		return os.Open(files[path])
	})
}

// TestPurityFinds: each breach is found, and what only looks like one is not.
func TestPurityFinds(t *testing.T) {
	imp := exports(t, "time", "maps", "slices", "math/rand/v2", "sync", "os", "fmt")
	for name, tc := range map[string]struct {
		body string
		want int
	}{
		"clock":              {body: `import "time"; func f() time.Time { return time.Now() }`, want: 1},
		"clock as value":     {body: `import "time"; var f = time.Now`, want: 1},
		"renamed clock":      {body: `import tm "time"; var f = tm.Since`, want: 1},
		"instants":           {body: `import "time"; func f(a, b time.Time) time.Duration { return a.Sub(b) + a.AddDate(0, 0, 1).Sub(b) }`},
		"lock":               {body: `import "sync"; var m sync.Mutex`, want: 1},
		"os":                 {body: `import "os"; var x = os.Args`, want: 1},
		"print":              {body: `import "fmt"; func f() { fmt.Println(1); println(2) }`, want: 2},
		"format":             {body: `import "fmt"; func f() string { return fmt.Sprint(1) }`},
		"goroutine":          {body: `func f() { go f() }`, want: 1},
		"channel":            {body: `func f(c chan int) { c <- 1; <-c }`, want: 3},
		"map":                {body: `func f(m map[int]int) (n int) { for k := range m { n += k }; return }`, want: 1},
		"named map":          {body: `type t map[int]int; func f(m t) { for range m { } }`, want: 1},
		"slice":              {body: `func f(s []int) { for range s { } }`},
		"map's keys":         {body: `import "maps"; func f(m map[int]int) { for range maps.Keys(m) { } }`, want: 1},
		"map's keys, sorted": {body: `import ("maps"; "slices"); func f(m map[int]int) []int { return slices.Sorted(maps.Keys(m)) }`},
		"global source":      {body: `import "math/rand/v2"; var x = rand.IntN(3)`, want: 1},
		"own source":         {body: `import "math/rand/v2"; func f(s uint64) int { return rand.New(rand.NewPCG(s, 1)).IntN(3) }`},
		"does not compile":   {body: `var x int = "a"`, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, "x.go", "package x; "+tc.body, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			if got := impurities(fset, []*ast.File{f}, "x", imp, purity{}); len(got) != tc.want {
				t.Errorf("found %d, want %d: %q", len(got), tc.want, got)
			}
		})
	}
}
