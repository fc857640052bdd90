package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/model"
)

func newVersion() *cobra.Command {
	var asJSON, licenses bool
	c := &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		Example: "  kvferry version\n  kvferry version --licenses",
		RunE: func(c *cobra.Command, _ []string) error {
			if licenses {
				_, err := fmt.Fprintf(c.OutOrStdout(), "kvferry is licensed under the Apache License 2.0.\n\nThe bundled model %s was trained on the doc comments of the Go standard library:\n\n%s", model.Name, model.License)
				return err
			}
			rev := ""
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						rev = s.Value
					}
				}
			}
			if asJSON {
				return json.NewEncoder(c.OutOrStdout()).Encode(map[string]string{"version": Version, "revision": rev, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "kvferry %s %s %s/%s\n", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().BoolVar(&licenses, "licenses", false, "print the licence notices of what is inside")
	return c
}
