package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Environments: the product is built without cgo; the race detector cannot do without.
const (
	static = "CGO_ENABLED=0"
	cgo    = "CGO_ENABLED=1"
)

// interopPackage needs the machine for itself: it starts the processes of whole instances.
const interopPackage = "github.com/kvferry/kvferry/interop"

func (c *check) build() {
	c.command("build ./...", static, "", "go", "build", "./...")
}

// lint formats, vets and lints every module.
func (c *check) lint() {
	if c.kvlint == "" {
		c.fail("lint: -kvlint names no linter")
		return
	}
	c.gofmt()
	for _, dir := range c.modules() {
		c.command("go vet "+dir, static, dir, "go", "vet", "./...")
		c.command("kvlint "+dir, static, dir, "go", "vet", "-vettool="+c.kvlint, "./...")
	}
}

// gofmt looks at every Go file outside hidden and testdata folders.
func (c *check) gofmt() {
	var files []string
	walk(func(path string) {
		if strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
	})
	out, err := run(static, "", "gofmt", append([]string{"-l"}, files...)...)
	if err != nil || out != "" {
		fmt.Printf("FAIL gofmt: %v\n%s", err, out)
		c.fail("gofmt")
		return
	}
	fmt.Printf("ok   gofmt of %d files\n", len(files))
	c.passed++
}

// walk visits every file below the working directory, but hidden and testdata folders.
func walk(visit func(path string)) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // a test's or a build's temporary file
			return nil
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case !d.IsDir():
			visit(path)
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(1)
	}
}

// tidy asks every module whether its go.mod says what the code imports.
func (c *check) tidy() {
	for _, dir := range c.modules() {
		c.command("go mod tidy "+dir, static, dir, "go", "mod", "tidy", "-diff")
	}
}

// race runs every test that the race detector does not exclude.
func (c *check) race() {
	c.goTest("", cgo, append([]string{"-race", "-shuffle=on", "-timeout=8m"}, c.packages()...))
}

// norace runs the tests of the files that exist only without the race detector, and those of the nested modules.
func (c *check) norace() {
	for _, dir := range c.modules() {
		if dir != "." {
			c.goTest(dir, static, []string{"./..."})
		}
	}
	with, err := listed(cgo, "-race")
	if err != nil {
		c.fail("norace: " + err.Error())
		return
	}
	without, err := listed(static)
	if err != nil {
		c.fail("norace: " + err.Error())
		return
	}
	var packages, tests []string
	for path, p := range with {
		for _, f := range p.IgnoredGoFiles {
			if !strings.HasSuffix(f, "_test.go") || slices.Contains(without[path].IgnoredGoFiles, f) {
				continue
			}
			names, err := functions(filepath.Join(p.Dir, f), "Test")
			if err != nil {
				c.fail("norace: " + err.Error())
				continue
			}
			if len(names) > 0 {
				packages, tests = append(packages, path), append(tests, names...)
			}
		}
	}
	slices.Sort(packages)
	slices.Sort(tests)
	if packages = slices.Compact(packages); len(packages) == 0 {
		fmt.Println("no test file has the constraint !race")
		return
	}
	c.goTest("", static, append([]string{"-shuffle=on", "-timeout=8m", "-run=^(" + strings.Join(tests, "|") + ")$"}, packages...))
}

// interop runs the scenarios against the real SGLang, alone on the machine, and never from the cache: what it drives is no input of the test.
func (c *check) interop() {
	if c.python == "" {
		fmt.Println("no Python environment with SGLang: the interop tests skip")
	}
	c.goTest("", static, []string{"-count=1", "-timeout=10m", interopPackage})
}

// fuzz builds each package's instrumented test binary once and runs every target of it for a short while.
func (c *check) fuzz() {
	type target struct{ dir, binary, pkg, name string }
	var targets []target
	pkgs, err := listed(static)
	if err != nil {
		c.fail("fuzz: " + err.Error())
		return
	}
	for _, path := range sortedKeys(pkgs) {
		p, any := pkgs[path], false
		for _, f := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			names, err := functions(filepath.Join(p.Dir, f), "Fuzz")
			any = any || err == nil && len(names) > 0
		}
		if !any {
			continue // building every package to ask it would cost minutes
		}
		bin := filepath.Join(c.cache, "fuzz", strings.ReplaceAll(strings.TrimPrefix(path, "github.com/kvferry/kvferry/"), "/", "-")+".test")
		if out, err := run(static, "", "go", "test", "-c", "-vet=off", "-fuzz=Fuzz", "-o", bin, path); err != nil {
			c.fail("fuzz: build of " + path + ": " + err.Error() + "\n" + out)
			continue
		}
		out, err := run(static, p.Dir, bin, "-test.list=^Fuzz")
		if err != nil {
			c.fail("fuzz: list of " + path + ": " + err.Error() + "\n" + out)
			continue
		}
		for line := range strings.FieldsSeq(out) {
			targets = append(targets, target{p.Dir, bin, path, line})
		}
	}
	if len(targets) == 0 {
		fmt.Println("no fuzz targets")
		return
	}
	each := min(c.fuzzEach, max(time.Second, c.fuzzTotal/time.Duration(len(targets))))
	fmt.Printf("%d targets, %s each\n", len(targets), each.Round(100*time.Millisecond))
	for _, t := range targets {
		corpus := filepath.Join(c.cache, "fuzz", "corpus", strings.ReplaceAll(t.pkg, "/", "-"))
		began := time.Now()
		out, err := run(static, t.dir, t.binary, "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzztime="+each.String(), "-test.fuzzminimizetime=5s", "-test.fuzzcachedir="+corpus)
		if err != nil && deadline.MatchString(out) {
			err = nil
		}
		c.result("fuzz "+t.pkg+" "+t.name, began, out, err)
	}
}

// deadline is the whole verdict of a target whose time ran out while its workers were starting an input: the fuzzing engine then takes its
// own deadline for a failure. A crash or a hang has another text, and names the input that it wrote.
var deadline = regexp.MustCompile(`^--- FAIL: Fuzz\w+ \([\d.]+s\)\n    context deadline exceeded\nFAIL\n`)

// modules are the folders with a go.mod, the root first.
func (c *check) modules() []string {
	var out []string
	walk(func(path string) {
		if filepath.Base(path) == "go.mod" {
			out = append(out, filepath.Dir(path))
		}
	})
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	return out
}

// packages are all of the root module's but the interop tests.
func (c *check) packages() []string {
	pkgs, err := listed(static)
	if err != nil {
		c.fail("packages: " + err.Error())
	}
	delete(pkgs, interopPackage)
	return sortedKeys(pkgs)
}

// listing is what the go command tells of a package.
type listing struct {
	ImportPath, Dir                           string
	IgnoredGoFiles, TestGoFiles, XTestGoFiles []string
}

// listed asks the go command for the root module's packages, by import path.
func listed(env string, flags ...string) (map[string]listing, error) {
	args := append([]string{"list", "-e", "-json=ImportPath,Dir,IgnoredGoFiles,TestGoFiles,XTestGoFiles"}, flags...)
	out, err := run(env, "", "go", append(args, "./...")...)
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, out)
	}
	pkgs := map[string]listing{}
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var p listing
		if err := d.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		pkgs[p.ImportPath] = p
	}
	return pkgs, nil
}

// functions are the names of a file's functions that begin with prefix.
func functions(file, prefix string) ([]string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, prefix) && fn.Name.Name != "TestMain" {
			out = append(out, fn.Name.Name)
		}
	}
	return out, nil
}

// command runs one command as one check; its output is shown when it fails.
func (c *check) command(name, env, dir string, argv ...string) {
	began := time.Now()
	out, err := run(env, dir, argv[0], argv[1:]...)
	c.result(name, began, out, err)
}

// result counts one check.
func (c *check) result(name string, began time.Time, out string, err error) {
	took := time.Since(began).Seconds()
	if err != nil {
		fmt.Printf("FAIL %s (%.1f s): %v\n%s", name, took, err, out)
		c.fail(name)
		return
	}
	fmt.Printf("ok   %s (%.1f s)\n", name, took)
	c.passed++
}

// run is a command's standard output, followed by its standard error when it failed.
func run(env, dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String() + errs.String(), err
	}
	return out.String(), nil
}

func sortedKeys(m map[string]listing) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
