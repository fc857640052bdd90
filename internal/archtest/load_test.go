package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// pkg is what the go command tells of a package of ours.
type pkg struct {
	ImportPath, Dir, Name                                string
	GoFiles, CgoFiles, CFiles, TestGoFiles, XTestGoFiles []string
	IgnoredGoFiles                                       []string
	Imports                                              []string
	Incomplete                                           bool
}

// rel is the path below the module.
func (p pkg) rel() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") }

// files parses the named files of the package.
func (p pkg) files(t *testing.T, fset *token.FileSet, names ...[]string) []*ast.File {
	t.Helper()
	var out []*ast.File
	for _, list := range names {
		for _, name := range list {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("%s: %v", p.rel(), err)
				continue
			}
			out = append(out, f)
		}
	}
	return out
}

// root is the module's folder.
const root = "../.."

var load = sync.OnceValues(func() ([]pkg, error) {
	// cgo on, so that files that need it are seen
	out, err := command("CGO_ENABLED=1", "go", "list", "-e", "-json=ImportPath,Dir,Name,GoFiles,CgoFiles,CFiles,TestGoFiles,XTestGoFiles,IgnoredGoFiles,Imports,Incomplete", "./...")
	if err != nil {
		return nil, err
	}
	var pkgs []pkg
	d := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
})

func packages(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 3 {
		t.Fatalf("go list found %d packages", len(pkgs))
	}
	return pkgs
}

// command runs a program in the module's folder.
func command(env, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), env)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, errors.New(errs.String()))
	}
	return out, nil
}

// covers reports whether a pattern such as transfer/... covers a path below the module.
func covers(pattern, path string) bool {
	base, tree := strings.CutSuffix(pattern, "...")
	if !tree {
		return pattern == path
	}
	base = strings.TrimSuffix(base, "/")
	return base == "" || path == base || strings.HasPrefix(path, base+"/")
}
