package archtest

import (
	"bytes"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestDirections: imports point down, by the table.
func TestDirections(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		i := slices.IndexFunc(layers, func(r rule) bool { return covers(r.pkg, p.rel()) })
		if i < 0 {
			t.Errorf("%s has no rule: say in rules_test.go what it may import, and why", p.rel())
			continue
		}
		seen[layers[i].pkg] = true
		for _, imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			if !slices.ContainsFunc(layers[i].may, func(pattern string) bool { return covers(pattern, dep) }) {
				t.Errorf("%s imports %s; it may import %q: %s", p.rel(), dep, layers[i].may, layers[i].reason)
			}
			if reason, only := testOnly[dep]; only {
				t.Errorf("%s imports %s outside its tests: %s", p.rel(), dep, reason)
			}
		}
	}
	for _, r := range layers {
		if !seen[r.pkg] {
			t.Logf("absent: %s (%s)", r.pkg, r.reason)
		}
	}
}

// TestNoCgo: the product is static and builds without a C compiler; vendor libraries live in other modules and processes.
func TestNoCgo(t *testing.T) {
	fset := token.NewFileSet()
	for _, p := range packages(t) {
		if len(p.CgoFiles)+len(p.CFiles) > 0 {
			t.Errorf("%s has cgo or C files: %v", p.rel(), slices.Concat(p.CgoFiles, p.CFiles))
		}
		for _, f := range p.files(t, fset, p.IgnoredGoFiles) {
			for _, imp := range f.Imports {
				if imp.Path.Value == `"C"` {
					t.Errorf("%s imports C", fset.Position(imp.Pos()))
				}
			}
		}
	}
}

// TestPackageComments: every package has exactly one, in one file.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		fset := token.NewFileSet()
		names := p.GoFiles
		if len(names) == 0 { // a package of tests only
			names = slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		}
		var docs []*ast.File
		for _, f := range p.files(t, fset, names) {
			if f.Doc != nil && strings.TrimSpace(f.Doc.Text()) != "" {
				docs = append(docs, f)
			}
		}
		if len(docs) != 1 {
			t.Errorf("%s has %d package comments, want 1", p.rel(), len(docs))
			continue
		}
		want := "Package " + docs[0].Name.Name + " "
		if p.Name == "main" {
			want = "Command " + filepath.Base(p.Dir) + " "
		}
		if got := docs[0].Doc.Text(); !strings.HasPrefix(got, want) {
			t.Errorf("%s: package comment begins %.30q, want %q", p.rel(), got, want)
		}
	}
}

// TestSettings: flags and the environment are read in one place.
func TestSettings(t *testing.T) {
	for _, p := range packages(t) {
		if _, ok := settings[p.rel()]; ok {
			continue
		}
		for _, imp := range p.Imports {
			if slices.Contains(flagPackages, imp) {
				t.Errorf("%s imports %s: flags are parsed in internal/cli", p.rel(), imp)
			}
		}
		fset := token.NewFileSet()
		for _, f := range p.files(t, fset, p.GoFiles) {
			for _, path := range []string{"os", "syscall", "golang.org/x/sys/unix"} {
				for _, use := range uses(f, path) {
					if slices.Contains(environment, use.Sel.Name) {
						t.Errorf("%s: the environment is read in internal/cli", fset.Position(use.Pos()))
					}
				}
			}
		}
	}
}

// uses are the selector expressions of a file whose operand is the named import. A local variable of the same name hides it; none of the
// packages asked for has a name that a variable would take.
func uses(f *ast.File, path string) []*ast.SelectorExpr {
	name := ""
	for _, imp := range f.Imports {
		if v, _ := strconv.Unquote(imp.Path.Value); v == path {
			name = filepath.Base(path)
			if name == "v2" {
				name = filepath.Base(filepath.Dir(path))
			}
			if imp.Name != nil {
				name = imp.Name.Name
			}
		}
	}
	var out []*ast.SelectorExpr
	if name == "" {
		return nil
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == name {
				out = append(out, s)
			}
		}
		return true
	})
	return out
}

// TestForbidden: no tracked file tells of a machine, a plan or the past.
func TestForbidden(t *testing.T) {
	for _, path := range tracked(t) {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			continue // removed and not yet committed
		}
		if bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0 {
			continue // binary, by git's own rule
		}
		for _, f := range patterns {
			for _, at := range f.re.FindAllIndex(data, 3) {
				line := 1 + bytes.Count(data[:at[0]], []byte("\n"))
				t.Errorf("%s:%d: %q: %s", path, line, data[at[0]:at[1]], f.reason)
			}
		}
	}
}

type pattern struct {
	re     *regexp.Regexp
	reason string
}

var patterns = func() (out []pattern) {
	for _, f := range forbidden {
		out = append(out, pattern{regexp.MustCompile("(?m)" + f.pattern), f.reason})
	}
	return out
}()

// TestForbiddenFinds: each pattern finds what it is for, and leaves alone what looks like it.
func TestForbiddenFinds(t *testing.T) {
	for text, want := range map[string]bool{
		"see /" + "work/main/x": true, "/" + "root/.cache": true, "=/" + "home/me/x": true, "/tmp/" + "kvferry/py": true, "from proxy." + "golang.org": true,
		"// TO" + "DO: more": true, "see issue #" + "12": true,
		"https://host/work/1": false, "the root/work tree": false, "a todo list": false, "$HOME/x": false, "/tmp/x": false, "golang.org/x/sys": false, "issue 12 pages": false,
	} {
		if got := slices.ContainsFunc(patterns, func(p pattern) bool { return p.re.MatchString(text) }); got != want {
			t.Errorf("%q: found %v, want %v", text, got, want)
		}
	}
}

// tracked lists the files under version control, or, in an unpacked archive, all.
func tracked(t *testing.T) []string {
	t.Helper()
	if out, err := command("", "git", "ls-files", "-z"); err == nil && len(out) > 0 {
		return strings.Split(strings.Trim(string(out), "\x00"), "\x00")
	}
	var out []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == ".cache" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() {
			rel, err := filepath.Rel(root, path)
			out = append(out, rel)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestVersionStamp: the variable that the Makefile stamps exists; the linker ignores an unknown one silently.
func TestVersionStamp(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`-X ` + regexp.QuoteMeta(module) + `/(\S+)\.(\w+)=`).FindSubmatch(data)
	if m == nil {
		t.Fatal("the Makefile stamps no version")
	}
	i := slices.IndexFunc(packages(t), func(p pkg) bool { return p.rel() == string(m[1]) })
	if i < 0 {
		t.Logf("absent: %s", m[1])
		return
	}
	p := packages(t)[i]
	for _, f := range p.files(t, token.NewFileSet(), p.GoFiles) {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, s := range g.Specs {
				if v := s.(*ast.ValueSpec); slices.ContainsFunc(v.Names, func(n *ast.Ident) bool { return n.Name == string(m[2]) }) {
					return
				}
			}
		}
	}
	t.Errorf("%s has no package variable %s, which the Makefile stamps", m[1], m[2])
}
