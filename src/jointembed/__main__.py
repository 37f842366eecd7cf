from jointembed.cli import main

main()
